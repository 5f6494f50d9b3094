"""The only SQL: a module for each table, the pool, the listener, and the migrations."""
