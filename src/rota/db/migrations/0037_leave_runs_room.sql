-- Why: a run that is claimed grows by its worker, its lease and the hash of its token. Where a page was half full of runs,
--      every sixth of them no longer fitted beside itself, was moved, and wrote an entry into each of seven indexes. Now all
--      fit. A ledger takes no more room than before: what is left free in one page is not taken in another.
-- Locks: runs against other changes of its kind and against VACUUM, for an instant. Pages that are filled stay as they are.

ALTER TABLE runs SET (fillfactor = 42);
