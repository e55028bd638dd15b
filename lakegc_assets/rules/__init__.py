"""What lakegc decides: pure, without a store, a server or a session."""
