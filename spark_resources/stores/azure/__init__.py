"""Azure's blob storage."""
