package donagrpc

// Forget undoes Use, so that a test may run twice in a process.
func Forget() { shared.Store(nil) }
