"""Who may: callers and levels, tokens and sign-in, grants."""
