"""The room of the page loss_and_muon."""
