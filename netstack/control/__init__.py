"""What processes say to each other beside the data: greetings, messages, signs of life."""
