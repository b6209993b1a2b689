"""Speed against a peer, in one run on one machine."""
