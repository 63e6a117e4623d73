"""The consumer: claims for free slots only, runs handlers, settles each attempt once."""
