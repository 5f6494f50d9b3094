INSERT INTO credentials (workspace_id, id, name, sealed, created_by)
VALUES (id('house'), id('credential'), 'mail-password', '\x026b315cfef5fc1fef4ecf4a54ee2efe2165cd3a5bf942a4f6a73724b40193617c7bc0ea0e3d69e3a382', id('admin'));
