"""What models contain and cost, which constants are weights, and in what two models differ."""
