"""NNCodec as a peer codes with it, and as a method of DynaQuant (`method`)."""
