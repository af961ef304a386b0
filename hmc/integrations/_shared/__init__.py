"""What the drop-ins for other transfer libraries have in common. Raises HMC's errors; each drop-in translates them."""
