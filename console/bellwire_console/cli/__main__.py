from bellwire_console.cli import main

main()
