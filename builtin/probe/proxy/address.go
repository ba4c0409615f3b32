package proxy

import (
	"encoding/json"
	"net/netip"
	"strings"
)

// fields are where services that tell a client its address put it in their JSON, the
// better first.
var fields = []string{"ip", "origin", "query", "address", "ip_addr", "ip_address", "ipAddress", "ipString", "client_ip", "clientIp", "remote_addr", "YourIP", "your_ip"}

// exitAddress finds the address in an answer: alone, in a line ip=…, or in JSON.
func exitAddress(body []byte) (netip.Addr, bool) {
	text := strings.TrimSpace(strings.TrimPrefix(string(body), "\ufeff"))
	if strings.HasPrefix(text, "{") {
		return fromJSON(text)
	}
	if ip, ok := parse(strings.Trim(text, `"`)); ok {
		return ip, true
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "ip="); ok {
			return parse(value)
		}
	}
	return netip.Addr{}, false
}

func fromJSON(text string) (netip.Addr, bool) {
	var object map[string]json.RawMessage
	if json.NewDecoder(strings.NewReader(text)).Decode(&object) != nil {
		return netip.Addr{}, false
	}
	for _, name := range fields {
		var value string
		if raw, ok := object[name]; ok && json.Unmarshal(raw, &value) == nil {
			if ip, ok := parse(value); ok {
				return ip, true
			}
		}
	}
	return netip.Addr{}, false
}

// parse reads an address. Of a list, as proxies in front of a service make it, the last
// one is whom the outermost of them saw: where the traffic came from.
func parse(text string) (netip.Addr, bool) {
	last := text[strings.LastIndexByte(text, ',')+1:]
	ip, err := netip.ParseAddr(strings.TrimSpace(last))
	if err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() {
		return netip.Addr{}, false
	}
	return ip.Unmap(), true
}
