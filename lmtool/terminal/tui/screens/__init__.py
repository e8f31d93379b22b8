"""What opens over the panes: text to read, a question, a comparison."""
