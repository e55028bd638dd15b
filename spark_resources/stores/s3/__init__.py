"""S3 and stores that are compatible with it."""
