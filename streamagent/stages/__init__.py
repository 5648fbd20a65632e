"""The stages that ship with the package, one file each."""
