"""What tests share: ranks as processes, inputs, NumPy models, emulators and namespaces."""
