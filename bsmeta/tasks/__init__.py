"""What can be trained. A task is one module and one line here."""
