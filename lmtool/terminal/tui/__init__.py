"""The inspector: `state.State` folds events into columns, `view.View` selects the visible part, `app` draws it."""
