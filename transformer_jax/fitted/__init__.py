"""What comes out of training: a model with its parameters, which evaluates, predicts, shows examples and is saved."""
