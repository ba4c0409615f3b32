package cli

import (
	"fmt"
	"strconv"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// parseMatch reads a targeting rule: ATTRIBUTE OPERATOR [VALUE,…] -> VARIANT.
// What the rule means is checked by the host.
func parseMatch(text string) (*donav1.TargetingRule, error) {
	const form = `allowed is "ATTRIBUTE OPERATOR VALUE,... -> VARIANT"`
	attribute, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	operator, rest, _ := strings.Cut(strings.TrimSpace(rest), " ")
	if attribute == "" || operator == "" {
		return nil, fmt.Errorf("%s", form)
	}
	op, ok := operatorOf(operator)
	if !ok {
		return nil, fmt.Errorf("no operator %q: %s", operator, form)
	}
	values, rest, err := parseValues(strings.TrimSpace(rest))
	if err != nil {
		return nil, err
	}
	variant, ok := strings.CutPrefix(rest, "->")
	if variant = strings.TrimSpace(variant); !ok || variant == "" {
		return nil, fmt.Errorf("no variant after \"->\": %s", form)
	}
	return &donav1.TargetingRule{Attribute: attribute, Operator: op, Values: values, Variant: variant}, nil
}

func operatorOf(name string) (donav1.TargetingRule_Operator, bool) {
	name = strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	n, ok := donav1.TargetingRule_Operator_value["OPERATOR_"+name]
	return donav1.TargetingRule_Operator(n), ok && n != 0
}

// parseValues reads values separated by commas up to the arrow and returns what
// is left, which begins with it when it is there.
func parseValues(text string) (values []string, rest string, err error) {
	for text != "" && !strings.HasPrefix(text, "->") {
		var value string
		if text[0] == '"' {
			quoted, err := strconv.QuotedPrefix(text)
			if err != nil {
				return nil, "", fmt.Errorf("a quote is not closed")
			}
			if value, err = strconv.Unquote(quoted); err != nil {
				return nil, "", fmt.Errorf("%s cannot be read", quoted)
			}
			text = strings.TrimSpace(text[len(quoted):])
		} else {
			end := len(text)
			for _, stop := range []string{",", "->"} {
				if i := strings.Index(text, stop); i >= 0 {
					end = min(end, i)
				}
			}
			value, text = strings.TrimSpace(text[:end]), text[end:]
			if value == "" {
				return nil, "", fmt.Errorf("a value is empty: write \"\" for the empty text")
			}
		}
		values = append(values, value)
		if after, ok := strings.CutPrefix(text, ","); ok {
			text = strings.TrimSpace(after)
			if text == "" || strings.HasPrefix(text, "->") {
				return nil, "", fmt.Errorf("a value is missing after the comma")
			}
			continue
		}
		if !strings.HasPrefix(text, "->") && text != "" {
			return nil, "", fmt.Errorf("a comma or \"->\" is missing after %q", value)
		}
	}
	return values, text, nil
}
