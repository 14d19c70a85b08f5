"""What other allocator settings would have done to a recorded job."""
