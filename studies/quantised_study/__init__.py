"""What increments of 8 and 4 bits a weight save in bytes and cost in quality."""
