"""Reports: tables, figures, and pages for the terminal, Markdown and the browser."""
