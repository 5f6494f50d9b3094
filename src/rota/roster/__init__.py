"""What people save: agents, automations and their triggers; and what they start by hand."""
