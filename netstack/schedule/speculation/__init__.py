"""Second attempts of slow tasks: which tasks are slow, where nothing new is sent, and which attempt has won."""
