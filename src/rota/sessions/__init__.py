"""What agents do together: sessions and their transcripts."""
