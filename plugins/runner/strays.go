package runner

// CutLifeline gives the process the end of file that it reads when its host is
// gone. It may be called once the process has started.
func (p *Process) CutLifeline() { _ = p.lifeline.Close() }
