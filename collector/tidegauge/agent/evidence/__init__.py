"""Evidence on this node: what ranks wrote, checked, compared, stored and reported."""
