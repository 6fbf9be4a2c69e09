"""What guesses the target's next tokens."""
