"""What one worker does with what one sandbox sends: names, connections, requests. Everything around it is an argument."""
