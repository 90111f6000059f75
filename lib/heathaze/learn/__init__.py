"""Learning from noise: denoisers that see noisy tensors only, tonight's and every earlier night's."""
