"""What transports have in common: memory, pages, peers, the life of a communicator, why a call cannot go on."""
