// Package prototest walks messages by their descriptors, for tests that hold for every
// field there is: one that is added later is in them at once.
package prototest

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Path is a field of a message at any depth.
type Path []protoreflect.FieldDescriptor

// String is as errors name fields, without indexes.
func (p Path) String() string {
	names := make([]string, len(p))
	for i, f := range p {
		names[i] = string(f.Name())
	}
	return strings.Join(names, ".")
}

// Enums lists the enum fields of a message and of those in it, but for google's own
// messages. Of a message that has itself in it, the first one is looked into.
func Enums(d protoreflect.MessageDescriptor) []Path { return enums(d, nil) }

func enums(d protoreflect.MessageDescriptor, above Path) (all []Path) {
	if d.ParentFile().Package().Parent() == "google" {
		return nil
	}
	for _, f := range above[:max(len(above)-1, 0)] {
		if of(f) == d {
			return nil
		}
	}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		here := append(above[:len(above):len(above)], f)
		if f.IsMap() {
			f = f.MapValue()
		}
		switch f.Kind() {
		case protoreflect.EnumKind:
			all = append(all, here)
		case protoreflect.MessageKind, protoreflect.GroupKind:
			all = append(all, enums(f.Message(), here)...)
		}
	}
	return all
}

// of is the message that a field has; nil when it has none.
func of(f protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if f.IsMap() {
		f = f.MapValue()
	}
	return f.Message()
}

// Set sets the enum at the path, in the first item of lists, and under the key "key" of
// maps. What is not there on the way to it is made.
func (p Path) Set(m proto.Message, n protoreflect.EnumNumber) {
	at := m.ProtoReflect()
	for i, f := range p {
		last := i == len(p)-1
		switch {
		case f.IsMap():
			key := protoreflect.ValueOfString("key").MapKey()
			if last {
				at.Mutable(f).Map().Set(key, protoreflect.ValueOfEnum(n))
			} else {
				at = at.Mutable(f).Map().Mutable(key).Message()
			}
		case f.IsList() && last:
			if list := at.Mutable(f).List(); list.Len() > 0 {
				list.Set(0, protoreflect.ValueOfEnum(n))
			} else {
				list.Append(protoreflect.ValueOfEnum(n))
			}
		case f.IsList():
			list := at.Mutable(f).List()
			if list.Len() == 0 {
				list.AppendMutable()
			}
			at = list.Get(0).Message()
		case last:
			at.Set(f, protoreflect.ValueOfEnum(n))
		default:
			at = at.Mutable(f).Message()
		}
	}
}
