"""What runs pods and JobSets in tests where no kubelet and no JobSet controller does; through the API alone, so that it
works on any API server. What it leaves out says the README.
"""
