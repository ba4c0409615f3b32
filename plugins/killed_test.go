package plugins_test

func hostProcess(string) {}
