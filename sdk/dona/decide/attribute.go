package decide

// Attribute is one fact about a request that targeting rules can look at. Make it
// with String, Int, Float or Bool; the zero value has no name and matches nothing.
type Attribute struct {
	name   string
	kind   attributeKind
	text   string
	number int64
	real   float64
}

type attributeKind uint8

const (
	attributeNone attributeKind = iota
	attributeString
	attributeInt
	attributeFloat
	attributeBool
)

// String returns a text attribute: what IN and NOT_IN compare with their values,
// byte for byte.
func String(name, value string) Attribute {
	return Attribute{name: name, kind: attributeString, text: value}
}

// Int returns an integer attribute.
func Int(name string, value int64) Attribute {
	return Attribute{name: name, kind: attributeInt, number: value}
}

// Float returns a floating-point attribute.
func Float(name string, value float64) Attribute {
	return Attribute{name: name, kind: attributeFloat, real: value}
}

// Bool returns a boolean attribute.
func Bool(name string, value bool) Attribute {
	a := Attribute{name: name, kind: attributeBool}
	if value {
		a.number = 1
	}
	return a
}

// Name returns the attribute's name.
func (a Attribute) Name() string { return a.name }

func find(attributes []Attribute, name string) *Attribute {
	for i := range attributes {
		if a := &attributes[i]; a.name == name && a.kind != attributeNone {
			return a
		}
	}
	return nil
}
