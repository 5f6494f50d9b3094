INSERT INTO held_words (workspace_id, run_id, attempt, form, size, shown, covered) VALUES (id('house'), id('turn'), 1, 0, 4, 0, 0);
