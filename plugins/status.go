package plugins

import donav1 "github.com/dodona-project/dodona/proto/dona/v1"

// What a supervisor tells of its plugin: to operators, and to the audit log.

func (s *supervisor) status() *donav1.PluginStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &donav1.PluginStatus{
		Kind: string(s.id.Kind), Name: s.id.Name, Version: s.version, Source: string(s.file.Source),
		State: string(s.state), Reason: s.reasonLocked(), Digest: s.file.Digest,
		Generation: s.number, Starts: s.starts, Exits: s.exits, Required: s.config.Required,
	}
	if g := s.current; g != nil {
		p.Source, p.Digest = string(g.file.Source), g.file.Digest
		p.Generation, p.Pid, p.Instances = g.number, int32(g.pid()), uint32(g.instances.len())
	}
	return p
}

// reasonLocked is the reason of the state, and the note.
func (s *supervisor) reasonLocked() string {
	if s.reason == "" || s.note == "" {
		return s.reason + s.note
	}
	return s.reason + "; " + s.note
}

func (s *supervisor) event(kind EventKind, g *generation, reason string) Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	ev := Event{Kind: kind, Plugin: s.id, Version: s.version, Digest: s.file.Digest, Generation: s.number, Reason: reason}
	if g != nil {
		ev.Version, ev.Digest, ev.Generation = g.description.version, g.file.Digest, g.number
	}
	return ev
}
