"""Tells what would make a recorded peak smaller, by changing the lives of its blocks. Pure: no file is read here."""
