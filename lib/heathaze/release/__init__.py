"""From a denoised tensor to a release that people query. Sees noisy and denoised tables only."""
