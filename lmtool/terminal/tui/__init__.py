"""The inspector: `state.State` folds events into columns, `view.View` chooses what is seen of them, `app` draws it."""
