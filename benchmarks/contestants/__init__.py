"""The same scripted agent, written for each library in the way that its documentation shows."""
