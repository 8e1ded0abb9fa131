"""What server and devices have in common: keys, the notice, the folder of a device, files, logs and processes."""
