# What zsh offers: complete.zsh FOLDER LINE EXPECTED. Types the line and a tab into a shell that has
# the completions in FOLDER, and ends once EXPECTED is shown.
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -U compinit; compinit -u -D"
zpty -w shell "bindkey '^I' list-choices"
zpty -w shell "stty columns 200; print REA''DY"
zpty -r shell text '*READY*'
zpty -w -n shell "$2"$'\t'
zpty -r shell text "*$3*"
zpty -d shell
