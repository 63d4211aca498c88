"""What an operator of one opset is at another: operators mean the same, or are written anew."""
