"""The screens: the panes, and dialogs over them."""
