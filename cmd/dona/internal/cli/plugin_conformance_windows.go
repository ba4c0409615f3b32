package cli

import "context"

func judge(context.Context, conformance) (*judgement, error) { return nil, errNoHosts }
