"""Events → readers: record (append, then wake) and follow (stored, then live, no gap)."""
