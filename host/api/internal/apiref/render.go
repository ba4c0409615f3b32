package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/dodona-project/dodona/host/api"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// page is one page of the reference.
type page struct {
	path         string // from the root of the tree
	files        []protoreflect.FileDescriptor
	introduction string
	limits       []limit
}

var pages = []page{
	{"docs/api-control-plane.md", []protoreflect.FileDescriptor{donav1.File_dona_v1_control_proto, donav1.File_dona_v1_plan_proto, donav1.File_dona_v1_host_proto}, introduction, serviceLimits},
	{"docs/api-egress.md", []protoreflect.FileDescriptor{controlplanev1.File_controlplane_v1_controlplane_proto}, egressIntroduction, egressLimits},
}

// writer writes one page.
type writer struct {
	strings.Builder
	comments comments
	prefix   string // of the names of the page's own package
}

func (w *writer) line(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

// reference is a page, from the .proto files below the root of the tree.
func reference(root string, p page) ([]byte, error) {
	pkg := string(p.files[0].Package())
	w := &writer{comments: comments{}, prefix: pkg + "."}
	for _, f := range p.files {
		text, err := os.ReadFile(filepath.Join(root, "proto", filepath.FromSlash(f.Path())))
		if err != nil {
			return nil, err
		}
		all, err := readComments(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path(), err)
		}
		for name, comment := range all {
			w.comments[name] = comment
		}
	}
	w.line("<!-- Written by make docs from proto/%s, host/api and host/limits: change those. -->", strings.ReplaceAll(pkg, ".", "/"))
	w.line("%s", strings.TrimSpace(p.introduction))
	w.line("")
	w.limits(p.limits)
	for _, f := range p.files {
		for i := range f.Services().Len() {
			if err := w.service(f.Services().Get(i)); err != nil {
				return nil, err
			}
		}
	}
	w.line("## Messages")
	for _, f := range p.files {
		w.line("")
		w.line("From `proto/%s`.", f.Path())
		if err := w.enums(f.Enums()); err != nil {
			return nil, err
		}
		for i := range f.Messages().Len() {
			if err := w.message(f.Messages().Get(i)); err != nil {
				return nil, err
			}
		}
	}
	return []byte(w.String()), nil
}

func (w *writer) about(d protoreflect.Descriptor) (string, error) {
	name := d.FullName()
	if f, ok := d.(protoreflect.FieldDescriptor); ok && f.ContainingOneof() != nil && !f.ContainingOneof().IsSynthetic() {
		// Members of a oneof are fields of its message; the file has them inside.
		name = f.ContainingOneof().FullName().Append(f.Name())
	}
	text, known := w.comments[string(name)]
	if !known {
		return "", fmt.Errorf("%s is in the compiled contract and not in its .proto file: run make proto", d.FullName())
	}
	return text, nil
}

func (w *writer) service(s protoreflect.ServiceDescriptor) error {
	text, err := w.about(s)
	if err != nil {
		return err
	}
	w.line("## %s", s.Name())
	w.line("")
	w.line("%s", text)
	w.line("")
	w.line("| call | who | has to be its own | calls a second, burst | message, KiB | deadline |")
	w.line("|---|---|---|---|---|---|")
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		rule, ok := api.Policy[path(m)]
		if !ok {
			return fmt.Errorf("%s has no row in the table of host/api", m.FullName())
		}
		deadline := "its client's"
		if !m.IsStreamingClient() && !m.IsStreamingServer() {
			deadline = "at most " + short(rule.Deadline())
		}
		own := ""
		if rule.Object != "" {
			own = "`" + rule.Object + "`"
		}
		w.line("| [%s](#%s) | %s | %s | %g, %d | %d | %s |", m.Name(), strings.ToLower(string(m.Name())), who(rule.Roles), own, rule.Rate, rule.Burst, rule.MaxBytes>>10, deadline)
	}
	w.line("")
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		text, err := w.about(m)
		if err != nil {
			return err
		}
		w.line("### %s", m.Name())
		w.line("")
		w.line("`%s(%s) → %s`", m.Name(), streamed(m.IsStreamingClient(), m.Input()), streamed(m.IsStreamingServer(), m.Output()))
		w.line("")
		w.line("%s", emphasised(text))
		w.line("")
		if m.FullName() == "dona.v1.ControlPlane.ControlRollout" {
			w.actions()
		}
	}
	return nil
}

func path(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

func short(d time.Duration) string {
	if d%time.Hour == 0 {
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	if d%time.Minute == 0 {
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%g s", d.Seconds())
}

func who(roles []api.Role) string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

func streamed(stream bool, m protoreflect.MessageDescriptor) string {
	if stream {
		return "stream " + string(m.Name())
	}
	return string(m.Name())
}

// emphasised makes the labels of a comment bold, and sets its lists apart.
func emphasised(text string) string {
	for _, label := range labels {
		text = strings.ReplaceAll(text, "\n"+label+":\n", "\n**"+label+"**\n\n")
		text = strings.ReplaceAll(text, "\n"+label+": ", "\n**"+label+"**: ")
	}
	return text
}

// labels are what every call's comment has to say.
var labels = []string{"Refuses", "Durability", "Audit"}

func (w *writer) message(m protoreflect.MessageDescriptor) error {
	if m.IsMapEntry() {
		return nil
	}
	text, err := w.about(m)
	if err != nil {
		return err
	}
	w.head(m, text)
	if m.Fields().Len() == 0 {
		w.line("")
		w.line("No fields.")
	} else {
		w.line("")
		w.line("| field | | type | |")
		w.line("|---|---|---|---|")
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		text, err := w.about(f)
		if err != nil {
			return err
		}
		w.line("| `%s` | %d | %s | %s |", f.Name(), f.Number(), w.kind(f), cell(text))
	}
	if err := w.enums(m.Enums()); err != nil {
		return err
	}
	for i := range m.Messages().Len() {
		if err := w.message(m.Messages().Get(i)); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) enums(all protoreflect.EnumDescriptors) error {
	for i := range all.Len() {
		e := all.Get(i)
		text, err := w.about(e)
		if err != nil {
			return err
		}
		w.head(e, text)
		w.line("")
		w.line("| value | | |")
		w.line("|---|---|---|")
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			// Values are siblings of their enum; the file has them inside.
			text, known := w.comments[string(e.FullName())+"."+string(v.Name())]
			if !known {
				return fmt.Errorf("%s is not in its .proto file: run make proto", v.FullName())
			}
			w.line("| `%s` | %d | %s |", v.Name(), v.Number(), cell(text))
		}
	}
	return nil
}

func (w *writer) head(d protoreflect.Descriptor, text string) {
	w.line("")
	w.line("### %s", strings.TrimPrefix(string(d.FullName()), w.prefix))
	if text != "" {
		w.line("")
		w.line("%s", text)
	}
}

// cell is a comment as it fits into a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

func (w *writer) kind(f protoreflect.FieldDescriptor) string {
	if f.IsMap() {
		return fmt.Sprintf("map of %s to %s", f.MapKey().Kind(), f.MapValue().Kind())
	}
	name := f.Kind().String()
	switch {
	case f.Message() != nil:
		name = string(f.Message().FullName())
	case f.Enum() != nil:
		name = string(f.Enum().FullName())
	}
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		name = "one of " + string(o.Name()) + ": " + strings.TrimPrefix(name, w.prefix)
	}
	name = strings.TrimPrefix(name, w.prefix)
	if f.IsList() {
		return "repeated " + name
	}
	return name
}
